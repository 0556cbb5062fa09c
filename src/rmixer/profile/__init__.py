"""What a job uses: measured while it runs (`live`); more sources join here."""
